"""From a table of customers to a route: as GPX for the phone, as a table in visiting order, as a picture."""

from pathlib import Path

import georoutenet as grn

Path("customers.csv").write_text(
    """\
customer_id,name,lat,lon
K001,Depot,48.1372,11.5756
K002,Bakery,48.1486,11.5683
K003,Florist,48.1299,11.5834
K004,Bookshop,48.1612,11.5867
K005,Pharmacy,48.1196,11.5601
K006,Workshop,48.1427,11.5302
K007,Cafe,48.1531,11.6094
K008,Hotel,48.1070,11.5875
K009,School,48.1740,11.5559
K010,Market,48.1263,11.6061
"""
)

result = grn.solve("customers.csv", start="K001")  # degrees: great-circle kilometers
print(f"{result.length:.1f} km, at most {result.gap_bound:.2f} % above the shortest")
result.save("route.gpx")
result.save("route.csv")  # all columns, in visiting order
result.plot("route.png")
